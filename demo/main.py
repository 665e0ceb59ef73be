"""`make demo`: three regions on this machine, 36 real seasons, a region killed and brought back, and proofs.

Exit codes: 0 all is as it must be, 1 something is not, 2 wrong use or a machine that cannot start the regions, 130 stopped by Ctrl-C.
"""

import argparse
import signal
import sys
import time
from types import FrameType

from config.models import ConfigError
from demo.cluster import DemoCluster
from demo.narrator import Narrator
from demo.seasons import load_seasons
from demo.story import Story
from demo.tally import OffTrackError
from laurel import LaurelError
from regions.launcher import StartError

FIRST, LAST = 1991, 2026
QUICK = range(2016, 2022)


def years(text: str) -> range:
    """`2000-2005`, or one year."""
    first, _, last = text.partition("-")
    try:
        wanted = range(int(first), int(last or first) + 1)
    except ValueError:
        wanted = range(0)
    if not wanted or wanted[0] < FIRST or wanted[-1] > LAST:
        raise argparse.ArgumentTypeError(f"seasons are {FIRST} to {LAST}, such as 2000-2005")
    return wanted


def main(arguments: list[str] | None = None) -> int:
    """Tell the story; see the module for the exit codes."""
    parser = argparse.ArgumentParser(prog="python -m demo.main", description="Three regions, real seasons, a dead region, and proofs.")
    parser.add_argument("--seasons", type=years, metavar="YEARS", help="such as 2000-2005 (default: all)")
    parser.add_argument("--quick", action="store_true", help=f"seasons {QUICK[0]}-{QUICK[-1]} only")
    parser.add_argument("--keep", action="store_true", help="keep the data directory, with its logs")
    parser.add_argument("--seed", type=int, default=1, help="who submits what where (default: 1)")
    given = parser.parse_args(arguments)
    narrator = Narrator()
    seasons = load_seasons(given.seasons or (QUICK if given.quick else None))
    signal.signal(signal.SIGTERM, _interrupt)
    cluster: DemoCluster | None = None
    story: Story | None = None
    code = 1
    try:
        cluster = DemoCluster(keep=given.keep)
        story = Story(cluster, seasons, narrator, seed=given.seed)
        story.tell()
        code = 0
    except (StartError, ConfigError) as error:
        _fail(narrator, f"The regions cannot be started: {error}")
        code = 2
    except (OffTrackError, LaurelError) as error:
        _fail(narrator, f"Not as it must be: {error}")
    except KeyboardInterrupt:
        _fail(narrator, "Stopped; ending the regions.")
        code = 130
    finally:
        # From here on a second Ctrl-C must not leave processes behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if cluster is not None:
            cluster.keep = cluster.keep or code in (1, 2)
            began = time.monotonic()
            cluster.close()
            if code == 0:
                narrator.say(f"All regions are stopped ({time.monotonic() - began:.1f} s).")
            if cluster.keep:
                narrator.say(f"Data and logs are in {cluster.data_dir}.")
    if code == 0 and story is not None:
        narrator.table("What came out", story.figures())
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _fail(narrator: Narrator, sentence: str) -> None:
    narrator.end_bar()
    narrator.say(sentence, style="bold red")


if __name__ == "__main__":
    sys.exit(main())

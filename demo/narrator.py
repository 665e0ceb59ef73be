"""Where the story is told: short sentences with the time that has passed, and a bar where there is a terminal."""

import sys
import threading
import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table


class Narrator:
    """Thread-safe. On a terminal sentences scroll above a bar of races; elsewhere they are plain lines."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._console = Console(highlight=False) if sys.stdout.isatty() else None
        self._bar: Progress | None = None

    @property
    def elapsed_s(self) -> float:
        """Since the story began."""
        return time.monotonic() - self._began

    def say(self, sentence: str, *, style: str = "") -> None:
        """One sentence."""
        stamp = f"{self.elapsed_s:6.1f} s"
        with self._lock:
            if self._console is not None:
                text = f"[{style}]{escape(sentence)}[/]" if style else escape(sentence)
                self._console.print(f"[dim]{stamp}[/]  {text}")
            else:
                print(f"{stamp}  {sentence}", flush=True)

    def races(self, done: int, of: int, seasons: str) -> None:
        """How far the seasons are; shown on a terminal only."""
        with self._lock:
            if self._console is None:
                return
            if self._bar is None:
                columns = (TextColumn("[dim]races checked[/]"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
                self._bar = Progress(*columns, console=self._console, transient=True)
                self._bar.add_task("", total=of)
                self._bar.start()
            self._bar.update(self._bar.task_ids[0], completed=done, description=seasons)

    def end_bar(self) -> None:
        """Take the bar away. Idempotent."""
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def table(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        """What came out, a figure a line."""
        self.end_bar()
        with self._lock:
            if self._console is not None:
                table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
                table.add_column()
                table.add_column(justify="right")
                for name, figure in rows:
                    table.add_row(escape(name), escape(figure))
                self._console.print(table)
                return
            width, figures = max(len(name) for name, _ in rows), max(len(figure) for _, figure in rows)
            print(f"\n{title}")
            for name, figure in rows:
                print(f"  {name:<{width}}  {figure:>{figures}}")
            sys.stdout.flush()

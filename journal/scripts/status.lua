load_store()
return everything('ok')

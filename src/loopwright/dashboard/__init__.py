"""The live page: a server that reads run directories and never writes to them, and the same page as
one file.

`app.py` has the routes, `folder.py` the runs, `live.py` the server-sent events. Nothing here
imports torch.
"""

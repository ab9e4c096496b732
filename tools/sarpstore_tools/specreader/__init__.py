"""A second, independent reader of the sarpstore format: written from `format-spec/` alone, importing no engine code.

`structures` and `log` parse bytes, `runs` and `accept` find the state of the log (recovery.md), `state` replays it into
a directory (directory.md), `check_records` and `check_checkpoint` hold everything against everything else.
"""

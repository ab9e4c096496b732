"""A second, independent reader of the sarpstore format: written from `format-spec/` alone, importing no engine code.

`structures` and `log` parse bytes, `runs` and `accept` find the state of the log (recovery.md), `state` replays it into
a directory of keys (directory.md), `points`, `changes` and `lists` into one of posting lists (postings.md). `removed`
says what of it was removed (removal.md). The modules `check_*` hold everything against everything else.
"""

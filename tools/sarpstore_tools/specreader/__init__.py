"""A second, independent reader of the sarpstore format: written from `format-spec/` alone, importing no engine code.

`structures` and `log` parse bytes, `runs` and `accept` find the state of the log (recovery.md), `state` replays it into
a directory of keys (directory.md), `points`, `changes` and `lists` into one of posting lists (postings.md). The modules
`check_records`, `check_lists`, `check_summary` and `check_checkpoint` hold everything against everything else.
"""

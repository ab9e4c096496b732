"""The segment log: headers, commits, the writer, pages in memory, and the scan for recovery."""

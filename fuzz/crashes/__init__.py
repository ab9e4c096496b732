"""Crash images: what a power cut may leave at every write, sync and change of a name, recovered and asked.

    workload ──► store, simulated disk ──► an image at each change ──► opened, asked, cut again ──► an allowed state

`disk` takes the images, `history` does a workload and says which states may follow, `damage` spoils images as
devices do, `check` recovers and asks, `campaign` counts it all, `draw` says what is done.
"""

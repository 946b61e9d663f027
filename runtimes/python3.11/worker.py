"""The program of a worker. All else is in the package beside it, so that it is compiled once and not at every start."""
if __name__ == "__main__":                      # multiprocessing runs this file again, under another name
    import sys
    sys.path.insert(0, __file__.rpartition("/")[0] or ".")
    from sless_shim import start
    del sys.path[0]                             # the package finds the rest of itself by its own path
    start.main()

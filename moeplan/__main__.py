"""`python -m moeplan` is the command `moeplan`."""

from importlib import import_module

if __name__ == "__main__":
    import_module("command_line.app").main()

"""`logging` without set-up: INFO and above go to stderr, as long as the author configures nothing else."""
import sys


def _configure(logging):
    """Through the handler of last resort, so that a later `basicConfig` still finds a root logger without handlers."""
    try:
        last = logging._StderrHandler(logging.INFO)
        last.setFormatter(logging.Formatter(logging.BASIC_FORMAT))
        logging.lastResort = last
        logging.root.setLevel(logging.INFO)
    except AttributeError:
        pass                    # a module of the author's that bears this name


class _Finder:
    """Waits on sys.meta_path for the import of `logging`: importing it for all would cost each cold start."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "logging":
            return None
        sys.meta_path.remove(cls)
        spec = sys.modules["_frozen_importlib"]._find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                _configure(module)
            spec.loader.exec_module = exec_module
        return spec


def prepare():
    if "logging" in sys.modules:
        _configure(sys.modules["logging"])
    else:
        sys.meta_path.insert(0, _Finder)

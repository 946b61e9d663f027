"""From `entrypoint` to something that can be called."""
import os
import sys

from .errors import Refused

_VARARGS = 4                    # co_flags


def search_path(function_dir):
    """The author's folder first, the installed requirements where site-packages would be: they must not shadow Python's own modules."""
    sys.path.insert(0, function_dir)
    installed = function_dir + "/.sless/python"
    if os.path.isdir(installed):
        if any(name.endswith(".pth") for name in os.listdir(installed)):
            import site
            site.addsitedir(installed)
        else:
            sys.path.append(installed)
    if "PYTHONPATH" in os.environ:              # `site` would import it: this is how tracers get into a program (opentelemetry, ddtrace)
        try:
            import sitecustomize
        except ModuleNotFoundError as error:
            if error.name != "sitecustomize":
                raise
    for folder in _site_packages():
        if folder not in sys.path and os.path.isdir(folder):
            sys.path.append(folder)


def _site_packages():
    """The machine's own packages, which -S leaves out along with the milliseconds that `site` takes. Their .pth files are not run."""
    version = "python%d.%d" % sys.version_info[:2]
    environment = sys.executable.rpartition("/bin/")[0]
    if os.path.isfile(environment + "/pyvenv.cfg"):
        return (f"{environment}/lib/{version}/site-packages",)
    if sys.prefix == "/usr":                    # Debian's way
        return f"/usr/local/lib/{version}/dist-packages", "/usr/lib/python3/dist-packages"
    return (f"{sys.prefix}/lib/{version}/site-packages",)


class Entrypoint:
    """`src/app.main` or `src.app.main`: the module src.app, the name main."""

    def __init__(self, text, function_dir):
        self.text, self.dir = text, function_dir
        dotted = text.removeprefix("./").replace("/", ".")
        self.module, _, self.name = dotted.rpartition(".")
        if not self.name or not all(self.module.split(".")):
            raise Refused("EntrypointError", f'the entrypoint "{text}" is not FILE.FUNCTION, as in handler.handle or src/app.main')

    @property
    def path(self):
        return self.module.replace(".", "/")

    def load(self):
        """(module, handler)."""
        try:
            __import__(self.module)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{self.module}.".startswith(error.name + "."):
                raise               # something that the author's code imports
            raise self._no_file() from None
        module = sys.modules[self.module]
        self._check_origin(module)
        try:
            handler = getattr(module, self.name)
        except AttributeError:
            raise self._no_name(module) from None
        if isinstance(handler, type) and any("__call__" in base.__dict__ for base in handler.__mro__):
            handler = handler()
        if not callable(handler):
            raise Refused("EntrypointError", f'"{self.name}" in {self.path}.py is of type {type(handler).__name__}: it cannot be called')
        return module, handler

    def _no_file(self):
        folder, _, _ = self.path.rpartition("/")
        while folder and not os.path.isdir(f"{self.dir}/{folder}"):
            folder = folder.rpartition("/")[0]
        where = f"{self.dir}/{folder}" if folder else self.dir
        try:
            names = sorted(name + "/" * os.path.isdir(f"{where}/{name}") for name in os.listdir(where) if name not in (".sless", "__pycache__"))
        except OSError as error:
            names = [f"(not to be read: {error.strerror})"]
        there = ", ".join(names[:30]) + (f" and {len(names) - 30} more" if len(names) > 30 else "")
        return Refused("EntrypointError", f'no file for the entrypoint "{self.text}": looked for {self.path}.py and {self.path}/__init__.py in {self.dir}; '
                                          f'there is {there or "nothing"}{f" in {folder}/" if folder else ""}')

    def _no_name(self, module):
        names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        own = [name for name in names if getattr(vars(module)[name], "__module__", None) == module.__name__] or names
        return Refused("EntrypointError", f'{self.path}.py has no "{self.name}", which the entrypoint "{self.text}" names; '
                                          f'it has {", ".join(sorted(own)[:30]) or "nothing that can be called"}')

    def _check_origin(self, module):
        """A file named like a module of Python that is loaded already (io.py, time.py) would never be read."""
        origin = getattr(module, "__file__", None)
        ours = os.path.isfile(f"{self.dir}/{self.path}.py") or os.path.isfile(f"{self.dir}/{self.path}/__init__.py")
        if ours and not (origin and os.path.realpath(origin).startswith(os.path.realpath(self.dir) + "/")):
            raise Refused("EntrypointError", f'{self.path}.py bears the name of a module of Python itself, "{self.module}", which is loaded in its place: rename the file')


def positional(function):
    """How many of (event, context) it takes."""
    import types
    if isinstance(function, types.MethodType):
        return _by_code(function.__func__, 1)
    if isinstance(function, types.FunctionType):
        return _by_code(function, 0)
    call = getattr(type(function), "__call__", None)
    if isinstance(call, types.FunctionType):
        return _by_code(call, 1)
    return _by_signature(function)


def _by_code(function, bound):
    code = function.__code__
    if hasattr(function, "__wrapped__") and code.co_flags & _VARARGS:
        return _by_signature(function, bound)   # a decorator that hands on what it gets: what is below it counts
    return 2 if code.co_flags & _VARARGS else min(2, max(0, code.co_argcount - bound))


def _by_signature(function, bound=0):
    import inspect
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):             # C code that does not say
        return 2
    count = -bound
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            return 2
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            count += 1
    return min(2, max(0, count))

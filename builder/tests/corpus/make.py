"""Writes the archives of this folder and `cases.json`, what has to be answered to each. Only the standard library; the same bytes each time.

    python3 make.py

The content hash is computed here anew, from its documentation, and not by the code that is tested.
"""
import hashlib
import io
import json
import struct
import zipfile
from pathlib import Path

HERE = Path(__file__).parent
HANDLER = b"def handle(event, context):\n    return 1\n"
LIB = b"x = 1\n"
PLAIN = {"handler.py": HANDLER, "lib/util.py": LIB}
FILE, FOLDER, LINK, DEVICE, PIPE = 0o100644, 0o040755, 0o120777, 0o020666, 0o010666
CASES = []


def entry(name, mode=FILE, system=3):
    info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
    # ZipInfo would turn back-slashes and cut at NUL: what is written is what the case says.
    info.filename, info.create_system, info.external_attr = name, system, mode << 16 | 0x20    # "archive", which is no mode
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def archive(entries, comment=b"", **more):
    """A zip of (name or ZipInfo, bytes)."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", **more) as zip:
        for name, data in entries:
            zip.writestr(name if isinstance(name, zipfile.ZipInfo) else entry(name), data)
        zip.comment = comment
    return out.getvalue()


def content(files, executable=()):
    lines = (f"{path}\0{'x' if path in executable else '-'}\0{hashlib.sha256(data).hexdigest()}\n" for path, data in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def case(name, why, data, refused=None, files=None, executable=(), **more):
    (HERE / f"{name}.zip").write_bytes(data)
    answer = {"refused": refused} if refused is not None else {"files": len(files), "content_sha256": content(files, executable)}
    CASES.append({"file": f"{name}.zip", "why": why} | answer | more)


def patched(data, at, what):
    return data[:at] + what + data[at + len(what):]


def second_of(data, mark):
    return data.index(mark, data.index(mark) + 1)


LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
plain = archive(PLAIN.items())

# What is put right.
case("plain", "as it should be", plain, files=PLAIN)
case("top-folder", "a folder was zipped, and not what is in it", archive([("project/", b"")] + [(f"project/{n}", d) for n, d in PLAIN.items()]), files=PLAIN)
case("top-folders", "one in the other", archive([(f"a/b/{n}", d) for n, d in PLAIN.items()]), refused="there is `a/b/handler.py`: zip the folder that holds it")
case("top-folder-macos", "what the Finder makes of it", archive([(f"project/{n}", d) for n, d in PLAIN.items()] + [("__MACOSX/project/._handler.py", b"\0\5"), ("project/.DS_Store", b"\0")]), files=PLAIN)
case("back-slashes", "as some archivers on Windows write", archive([("handler.py", HANDLER), (entry("lib\\util.py", 0, 0), LIB)]), files=PLAIN)
case("dot-slash", "as `zip -r x ./` writes", archive([("./handler.py", HANDLER), ("./lib/", b""), ("./lib/util.py", LIB)]), files=PLAIN)
case("no-modes", "made where files have none", archive([(entry(n, 0, 0), d) for n, d in PLAIN.items()]), files=PLAIN)
case("odd-modes", "nobody may read it", archive([(entry(n, 0o100000), d) for n, d in PLAIN.items()]), files=PLAIN)
case("git", "the version control's own folder", archive(list(PLAIN.items()) + [(".git/HEAD", b"ref")]), files=PLAIN)
case("empty-folders", "they are no content", archive(list(PLAIN.items()) + [("a/", b""), ("a/b/", b"")]), files=PLAIN)
case("comment", "behind the end", archive(PLAIN.items(), b"made by hand"), files=PLAIN)
case("junk-first", "a self-extracting archive", b"#!/bin/sh\nexit 1\n" + plain, files=PLAIN)
case("other-order", "the order of the entries is no content", archive(reversed(PLAIN.items())), files=PLAIN)
case("stored", "not compressed", archive([(zipfile.ZipInfo(n), d) for n, d in PLAIN.items()]), files=PLAIN)


class Pipe(io.BytesIO):
    def seekable(self):
        return False

    def seek(self, *_):
        raise OSError


pipe = Pipe()
with zipfile.ZipFile(pipe, "w") as streamed:
    for name, data in PLAIN.items():
        streamed.writestr(entry(name), data)
case("streamed", "lengths stand behind the data", pipe.getvalue(), files=PLAIN)
big = io.BytesIO()
with zipfile.ZipFile(big, "w") as zip64:
    for name, data in PLAIN.items():
        with zip64.open(entry(name), "w", force_zip64=True) as out:
            out.write(data)
case("zip64", "lengths of 64 bits", big.getvalue(), files=PLAIN)
case("unicode-name", "", archive([("handler.py", HANDLER), ("größe/日本.txt", b"x")]), files={"handler.py": HANDLER, "größe/日本.txt": b"x"})
case("executable", "stays so, or is known by its first bytes", archive([("handler.py", HANDLER), (entry("a", 0o100755), b"x"), (entry("b", 0, 0), b"#!/bin/sh\n")]),
     files={"handler.py": HANDLER, "a": b"x", "b": b"#!/bin/sh\n"}, executable=("a", "b"))
case("package", "the handler is a package", archive([("handler/__init__.py", HANDLER)]), files={"handler/__init__.py": HANDLER})
case("entrypoint", "in a folder that is named", archive([("src/app.py", HANDLER)]), files={"src/app.py": HANDLER}, entrypoint="src/app.main")
case("node-module", "", archive([("handler.mjs", b"export const handle = 1\n")]), files={"handler.mjs": b"export const handle = 1\n"}, runtime="nodejs20")

# What is refused.
for name, path, word in [("escape", "../up.py", "leads out"), ("escape-inside", "lib/../../up.py", "leads out"), ("escape-back-slashes", "lib\\..\\..\\up.py", "leads out"),
                         ("dots-alone", "..", "leads out"), ("absolute", "/etc/cron.d/x", "absolute"), ("drive", "C:\\x.py", "drive"),
                         ("nul-in-a-name", "handler.py\0.txt", "NUL"), ("long-name", "a" * 300, "longer than"), ("long-path", "a/" * 3000 + "x", "longer than"),
                         ("deep", "a/" * 310 + "x", "folders deep"), ("own-folder", ".sless/python/six.py", ".sless")]:
    case(name, "a name that leads elsewhere, or that no disk takes", archive(list(PLAIN.items()) + [(path, b"x")]), refused=word)
for name, mode, word in [("link", LINK, "link"), ("device", DEVICE, "device"), ("pipe", PIPE, "pipe")]:
    case(name, "only files and folders", archive(list(PLAIN.items()) + [(entry("odd", mode), b"/etc/passwd")]), refused=word)
case("link-as-the-handler", "", archive([(entry("handler.py", LINK), b"/etc/passwd")]), refused="link")
case("through-a-link", "a link, and a file behind it", archive([("handler.py", HANDLER), (entry("lib", LINK), b"/tmp"), ("lib/x", b"x")]), refused="link")
case("twice", "which one counts?", archive([("handler.py", HANDLER), ("handler.py", b"other")]), refused="two entries for")
case("twice-by-dots", "", archive([("handler.py", HANDLER), ("./handler.py", b"other")]), refused="two entries for `./handler.py`")
case("file-and-folder", "", archive([("handler.py", HANDLER), ("lib", b"x"), ("lib/a.py", b"y")]), refused="folder of the same name")
case("empty", "", archive([]), refused="empty")
case("only-folders", "", archive([("a/", b"")]), refused="empty")
case("no-handler", "", archive([("main.py", HANDLER)]), refused="looked for handler.py")
case("two-handlers", "it could be either", archive([("a/handler.py", HANDLER), ("b/handler.py", HANDLER)]), refused="`a/handler.py` and `b/handler.py`")
case("handler-is-a-folder", "", archive([("handler.py/x", b"x"), ("y", b"y")]), refused="looked for handler.py")
case("wrong-language", "", archive([("handler.js", b"1")]), refused="looked for handler.py")
case("text", "no zip at all", b"def handle(event, context): return 1\n", refused="no zip archive")
case("nothing", "no byte", b"", refused="no zip archive")
case("tar", "another kind of archive", b"handler.py".ljust(257, b"\0") + b"ustar\x0000".ljust(255, b"\0"), refused="no zip archive")
case("cut-off", "an upload that broke off", plain[:-40], refused="no zip archive")
case("damaged", "one bit of the data", patched(plain, plain.index(b"handler.py") + 12, bytes([plain[plain.index(b"handler.py") + 12] ^ 4])), refused="cannot be read")
crc = plain.index(CENTRAL) + 16
case("wrong-checksum", "", patched(plain, crc, b"\1\2\3\4"), refused="cannot be read")
encrypted = patched(plain, plain.index(CENTRAL) + 8, b"\1\0")
case("encrypted", "", patched(encrypted, 6, b"\1\0"), refused="encrypted")
lzma = archive([(n, d) for n, d in PLAIN.items()])
lzma = patched(patched(lzma, lzma.index(CENTRAL) + 10, struct.pack("<H", 14)), 8, struct.pack("<H", 14))
case("unknown-method", "compressed in a way that few can read", lzma, refused="cannot be read")
overlap = patched(plain, second_of(plain, CENTRAL) + 42, struct.pack("<I", 0))
case("overlap", "two entries, one place", overlap, refused="")
zeros = archive([("handler.py", HANDLER), ("zeros", bytes(80 << 20))])
case("bomb", "80 MiB in 80 KiB", zeros, refused="zip bomb")
lying = patched(zeros, second_of(zeros, CENTRAL) + 24, struct.pack("<I", 10))
lying = patched(lying, second_of(lying, LOCAL) + 22, struct.pack("<I", 10))
case("bomb-that-lies", "the headers say 10 bytes", lying, refused="")
huge = patched(plain, second_of(plain, CENTRAL) + 24, struct.pack("<I", 0xfffffff0))
case("claims-4-gib", "6 bytes in truth: what comes out is counted, and nothing set aside on the header's word", huge, files=PLAIN)

(HERE / "cases.json").write_text(json.dumps(CASES, indent=1, ensure_ascii=False) + "\n")

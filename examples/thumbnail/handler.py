"""Makes a JPEG thumbnail: an image's bytes in, JPEG bytes out."""

import io

from PIL import Image, UnidentifiedImageError

WIDTHS = range(16, 2049)
Image.MAX_IMAGE_PIXELS = 50_000_000  # a larger image is refused before it is unpacked


def refuse(message):
    return {"statusCode": 400, "body": {"error": message}}


def wanted_width(query):
    text = dict(query).get("width", "128")
    if not (text.isascii() and text.isdigit()) or int(text) not in WIDTHS:
        raise ValueError(f"width must be a whole number from {WIDTHS[0]} to {WIDTHS[-1]}, not {text!r}")
    return int(text)


def handle(event, context):
    data = context.http.body
    if not data:
        return refuse("send an image as the request's body")
    try:
        width = wanted_width(context.http.query)
        image = Image.open(io.BytesIO(data))
        before = image.size
        height = max(1, round(before[1] * width / before[0]))
        image.draft("RGB", (width, height))  # JPEG can be decoded at a fraction of its size
        thumbnail = image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
    except UnidentifiedImageError:
        return refuse("the body is not an image that can be read (JPEG, PNG, WebP, GIF)")
    except (ValueError, OSError, Image.DecompressionBombError) as error:
        return refuse(str(error))

    out = io.BytesIO()
    thumbnail.save(out, "JPEG", quality=85)
    print(f"{before[0]}x{before[1]} ({len(data)} bytes) -> {width}x{height} ({out.tell()} bytes)")
    return {"statusCode": 200, "headers": {"content-type": "image/jpeg"}, "body": out.getvalue()}

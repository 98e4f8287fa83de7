#!/usr/bin/env python3
"""Restore a backup from a local copy of its objects, without Flagstone.

    restore-backup.py FOLDER VOLUME@SNAPSHOT|ID NEW_FILE [KEY_FILE]

FOLDER has the objects of the prefix, as `aws s3 sync s3://bucket/prefix FOLDER` copies them. It
needs Python 3.8, libcrypto 3 and libzstd. The format is in docs/backup-format.md. Everything is
compared with its checksum; a wrong one ends the restore, and the file is incomplete.
"""

import base64
import ctypes
import hashlib
import hmac
import json
import os
import struct
import sys
from pathlib import Path

BLOCK, RANGE_BLOCKS, PACKS = 4096, 1 << 17, 128
LABEL, ENTRY_LABEL = b"flagstone backup", b"flagstone entry "


def check(is_right, what):
    if not is_right:
        sys.exit(f"restore-backup: {what}")


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def decrypt(key, nonce, associated, sealed, what):
    """AES-256-GCM; the last 16 bytes are the tag."""
    crypto = ctypes.CDLL("libcrypto.so.3")
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("EVP_CIPHER_CTX_new", pointer, []),
        ("EVP_aes_256_gcm", pointer, []),
        ("EVP_CIPHER_CTX_free", None, [pointer]),
        ("EVP_CIPHER_CTX_ctrl", number, [pointer, number, number, text]),
        ("EVP_DecryptInit_ex", number, [pointer, pointer, pointer, text, text]),
        ("EVP_DecryptUpdate", number, [pointer, pointer, pointer, text, number]),
        ("EVP_DecryptFinal_ex", number, [pointer, pointer, pointer]),
    ):
        function = getattr(crypto, name)
        function.restype, function.argtypes = result, arguments
    content, tag = sealed[:-16], sealed[-16:]
    out, length = ctypes.create_string_buffer(len(content) + 16), number()
    context = crypto.EVP_CIPHER_CTX_new()
    at = ctypes.byref(length)
    is_right = (
        crypto.EVP_DecryptInit_ex(context, crypto.EVP_aes_256_gcm(), None, key, nonce) == 1
        and crypto.EVP_DecryptUpdate(context, None, at, associated, len(associated)) == 1
        and crypto.EVP_DecryptUpdate(context, out, at, content, len(content)) == 1
        and crypto.EVP_CIPHER_CTX_ctrl(context, 0x11, 16, tag) == 1
        and crypto.EVP_DecryptFinal_ex(context, ctypes.byref(out, len(content)), at) == 1
    )
    crypto.EVP_CIPHER_CTX_free(context)
    check(is_right, f"{what} cannot be decrypted: wrong key, or damage")
    return out.raw[: len(content)]


def decompress(content, length, what):
    zstd = ctypes.CDLL("libzstd.so.1")
    zstd.ZSTD_decompress.restype = ctypes.c_size_t
    size = ctypes.c_size_t
    zstd.ZSTD_decompress.argtypes = [ctypes.c_char_p, size, ctypes.c_char_p, size]
    out = ctypes.create_string_buffer(length)
    check(zstd.ZSTD_decompress(out, length, content, len(content)) == length, f"{what} is damaged")
    return out.raw


def prefix_key(sealed, key_file):
    check(key_file, "the backups are encrypted: name the key file")
    text, sealed = Path(key_file).read_text().strip(), bytes.fromhex(sealed)
    key = bytes.fromhex(text) if len(text) == 64 else base64.b64decode(text)
    check(len(key) == 32, f"{key_file} has no key of 32 bytes")
    return decrypt(key, sealed[:12], LABEL + bytes(16), sealed[12:], "the key of the prefix")


def open_sealed(key, writer, place, sealed, what):
    """Decrypts an index or a piece; without a key, it is plain."""
    if key is None:
        return sealed
    own = hmac.new(key, LABEL + bytes.fromhex(writer), hashlib.sha256).digest()
    return decrypt(own, struct.pack("<3I", *place), bytes(32), sealed, what)


def extents(index, number, writer):
    check(index[:8] == b"FSBINDEX", "this is no index")
    check(hashlib.sha256(index[:-32]).digest() == index[-32:], "the checksum of an index is wrong")
    version, of_range, writers, count = struct.unpack_from("<4I", index, 8)
    check((version, of_range) == (1, number), "this is another index")
    check(index[24:32] == bytes.fromhex(writer)[:8], "this is the index of another backup")
    table = 32 + 16 * writers
    for at in range(table, table + 60 * count, 60):
        first, blocks, skip, piece, encoding = struct.unpack_from("<I4H", index, at)
        place, pack, offset, stored = struct.unpack_from("<4I", index, at + 12)
        owner = index[32 + 16 * place : 48 + 16 * place].hex()
        checksum = index[at + 28 : at + 60].hex()
        yield first, blocks, skip, piece, encoding, owner, pack, offset, stored, checksum


def restore(folder, name, target, key_file):
    head = json.loads((folder / "head.json").read_bytes())
    check(head["format"] in (1, 2), "the format is of a newer version")
    key = prefix_key(head["encryption"], key_file) if head["format"] == 2 else None
    named = [e for e in head["backups"] if name in (e["id"], f"{e['volume']}@{e['snapshot']}")]
    check(named, f"there is no backup {name}")
    entry = named[-1]
    if key is not None:
        plain = json.dumps({k: v for k, v in entry.items() if k != "mac"}, separators=(",", ":"))
        mac = hmac.new(key, ENTRY_LABEL + plain.encode(), hashlib.sha256).hexdigest()
        check(hmac.compare_digest(mac, entry["mac"]), "the entry of the backup was changed")
    content = (folder / f"manifests/{entry['id']}.json").read_bytes()
    check(sha256(content) == entry["manifest_sha256"], "the checksum of the manifest is wrong")
    manifest = json.loads(content)
    seal = 0 if key is None else 16
    with open(target, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
        out.truncate(manifest["size_bytes"])
        for part in manifest["ranges"]:
            number, writer = part["range"], manifest["writers"][part["writer"]]
            what = f"data/{writer}/index-{number:06}"
            sealed = (folder / what).read_bytes()
            check(sha256(sealed) == part["index_sha256"], f"the checksum of {what} is wrong")
            index = open_sealed(key, writer, (1, number, 0), sealed, what)
            for extent in extents(index, number, writer):
                first, blocks, skip, piece, encoding, owner, pack, offset, stored, checksum = extent
                check(pack // PACKS == number, f"a pack of {what} is of another range")
                what = f"data/{owner}/pack-{pack:08}"
                with open(folder / what, "rb") as objects:
                    objects.seek(offset)
                    sealed = objects.read(stored + seal)
                content = open_sealed(key, owner, (0, pack, offset), sealed, what)
                if encoding == 1:
                    content = decompress(content, piece * BLOCK, what)
                check(sha256(content) == checksum, f"the checksum of a piece in {what} is wrong")
                out.seek((number * RANGE_BLOCKS + first) * BLOCK)
                out.write(content[skip * BLOCK : (skip + blocks) * BLOCK])
        out.flush()
        os.fsync(out.fileno())


if __name__ == "__main__":
    check(len(sys.argv) in (4, 5), __doc__)
    restore(Path(sys.argv[1]), *sys.argv[2:4], sys.argv[4] if len(sys.argv) == 5 else None)

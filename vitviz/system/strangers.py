"""What a stranger may do to a shared app. Each comment says what a limit is of, and which attack it stops."""

from __future__ import annotations

# Requests of a visitor answered at a time; one that asks for everything at once
AT_ONCE = 40
# Those that arrive, wait or are taken, too; one address with thousands of open requests
MOST = 400
# Calls of a visitor whose answers nobody reads; 400 calls of 1 MiB each, which Gradio keeps
MAX_UNREAD = 32
# Seconds until such an answer is dropped; a few from each of many addresses
REPLY_SECONDS = 600.0
# Short works at a time; forty analyses at once, each slower than all in turn
SHORT_PLACES = 2
# Long works at a time; large pictures, clips and studies that would take all processors
LONG_PLACES = 2
# Layers and files sent at a time; hover that waits behind analyses
QUICK_PLACES = 8
# Seconds of a processor until a picture waits with long work; eight addresses with pictures of ten seconds
SHORT_SECONDS = 1.5
# Pixels for each of these seconds, or it waits there at once; 64 megapixels in both short places
PIXELS_A_SECOND = 18e6
# Operations from which an analysis does; the largest resolution before small ones
LARGE_FLOPS = 150e9
# Seconds of a thread's processor until work of a shared app ends, at its next report; studies that never end
RUN_SECONDS = 120.0
# Seconds that a run outlives its connection; runs started and left
GRACE_SECONDS = 5.0
# Seconds in which a body arrives; 66 bodies that stop before their last byte
BODY_SECONDS = 10.0
# Bytes of a body for a second more; a byte now and then
BYTES_A_SECOND = 2**17
# Bytes of a JSON body; JSON without end
JSON_BYTES = 2**17
# Its lists, objects and commas; 43,000 empty lists, 3 MB once they are read
JSON_ITEMS = 20_000
# Its bytes that count as one more request; 400 waiting requests of 128 KiB
REQUEST_BYTES = 2**13
# Bytes of a call by MCP, with its pictures; a call without end
TOOL_BYTES = 32 * 2**20
# Bytes of a connection until it is the turn of others; bodies in chunks of one byte, of which 256 KiB have 43,000
READ_BYTES = 2**14
# Seconds until a connection's first request; thousands of idle connections
FIRST_REQUEST_SECONDS = 10
# Seconds in which a byte of an answer is taken; downloads that nobody reads
TAKEN_SECONDS = 60
# Visitors remembered as served, before whom new ones come; new addresses without end
MAX_SERVED = 64
# Least bytes of a row in memory; small entries that weigh more than they say
ROW_BYTES = 2**12
# Least bytes of a file; many empty files
FILE_BYTES = 2**18
# Share of what is kept for one analysis; one for which everybody else's go
MAX_SHARE = 0.5
# Bytes of a file's name; 85 CJK letters, which no disk takes
MAX_NAME_BYTES = 120
# Files of one form or call by MCP; more than there are descriptors, 9,000 empty pictures
FORM_FILES = 100
# Seconds of a processor for a picture; a JPEG file of 600 scans, numbers as text in PPM
PICTURE_SECONDS = 10
# Bytes of memory of its process; a decoder that takes all memory
PICTURE_BYTES = 3 * 2**29
# Seconds of a processor for a clip; 110 hidden frames for each that is shown
CLIP_SECONDS = 20
# Seconds until a picture or frame is there; decoders that wait, and use no processor
CHILD_SECONDS = 120

"""What a stranger may do to a shared app. Each comment says what a limit is of, and which attack it stops."""

from __future__ import annotations

# Requests of a visitor that are answered at a time; one address that asks for everything at once
AT_ONCE = 40
# Requests of a visitor that arrive, wait, or whose answers are taken; one address with thousands of open requests
MOST = 400
# Calls of a visitor whose answers nobody reads; 400 calls of 1 MiB each, which Gradio would keep
MAX_UNREAD = 32
# Seconds until an answer that nobody reads is dropped; a few unread answers from each of many addresses
REPLY_SECONDS = 600.0
# Short pieces of work at a time; forty analyses at once, each slower than all in turn
SHORT_PLACES = 2
# Long pieces of work at a time; large pictures, clips and studies that would take all processors
LONG_PLACES = 2
# Layers and files that are sent at a time; hover that waits behind analyses
QUICK_PLACES = 8
# Seconds of a processor until a picture waits with long work; eight addresses with pictures of ten seconds each
SHORT_SECONDS = 1.5
# Operations from which an analysis waits with long work; the largest resolution before everybody else's small ones
LARGE_FLOPS = 150e9
# Seconds after which work of a shared app ends at its next report; studies that never end
RUN_SECONDS = 120.0
# Seconds that a run goes on when its connection is lost; runs that are started and left
GRACE_SECONDS = 5.0
# Seconds in which a body must be there; 66 bodies that stop before their last byte
BODY_SECONDS = 10.0
# Bytes of a body for which it gets a second more; bodies that send a byte now and then
BYTES_A_SECOND = 2**17
# Bytes of a JSON body; JSON that nests or lists without end
JSON_BYTES = 2**17
# Lists, objects and commas of a JSON body; 43,000 empty lists, which take 3 MB once they are read
JSON_ITEMS = 20_000
# Bytes of a body that count as one more request; 400 requests of 128 KiB, which all wait
REQUEST_BYTES = 2**13
# Bytes of a call by MCP, whose strings may be pictures; a call without end
TOOL_BYTES = 32 * 2**20
# Seconds until the first request of a connection; thousands of idle connections
FIRST_REQUEST_SECONDS = 10
# Seconds in which at least a byte of an answer must be taken; downloads that nobody reads
TAKEN_SECONDS = 60
# Visitors of whom a list knows when they were served, and before whom one comes who is new; new addresses without end
MAX_SERVED = 64
# Bytes that a row in memory counts at least; many small entries that weigh more than they say
ROW_BYTES = 2**12
# Bytes that a file counts at least; many empty files
FILE_BYTES = 2**18
# Share of what is kept that one analysis may take; one analysis for which those of everybody else go
MAX_SHARE = 0.5
# Bytes of a file's name; names of 85 CJK letters, which no disk takes
MAX_NAME_BYTES = 120
# Files of one form or call by MCP; a form of more files than there are descriptors, a call of 9,000 empty pictures
FORM_FILES = 100
# Seconds of a processor for a picture; a JPEG file of 110 KB with 600 repeated scans, text of numbers as PPM
PICTURE_SECONDS = 10
# Bytes of memory of the process that opens a picture; a file whose decoder takes all memory
PICTURE_BYTES = 3 * 2**29
# Seconds of a processor for a clip; 110 hidden frames for each that is shown
CLIP_SECONDS = 20
# Seconds in which a picture or a frame must be there; decoders that wait for something, and use no processor
CHILD_SECONDS = 120

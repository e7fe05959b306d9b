"""What stands between the page and the machine: its memory, the files of visitors, and what a request may ask for."""

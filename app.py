"""The app: run it and open the address that it prints. Also the entry of a Hugging Face Space."""

from vitviz.ui import build_demo, launch_options

demo = build_demo()

if __name__ == "__main__":
    demo.launch(**launch_options())

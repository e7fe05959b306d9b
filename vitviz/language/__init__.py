"""Networks that write about pictures: what they attend to for each word.

``asking`` records a network while it generates (``generation``, ``record``), ``coordinates`` and ``places`` measure
which part of the user's picture a token stands for, ``word_maps`` draws on it, and ``answers`` is what a user asks.
"""

from vitviz.language.answers import Answer
from vitviz.language.asking import ask
from vitviz.language.reading import Reading
from vitviz.language.text import Token, Word

__all__ = ["Answer", "Reading", "Token", "Word", "ask"]

"""How much of the code the tests hold: small changes of the code, each of which should make a test fail.

``python -m tests.mutate --map`` runs the whole suite once under ``coverage``. It keeps in ``build/mutate`` which tests
ran each line of the package, and what each test takes. ``python -m tests.mutate --count 100 --seed 0 --jobs 2`` then
changes a hundred places, one at a time, each in a copy of the working tree.

Places. :func:`tests.mutate.places.changes` lists the kinds of change. Left alone are annotations, aliases and unions of
types, ``TYPE_CHECKING`` blocks, decorators, ``__repr__``, f-strings, ``strict=``, and what is raised. The drawn places
have the lowest hashes of the seed and of file, qualified name, kind and number within the function. So the same hundred
are drawn again after a change elsewhere, and after any change to the tests. Files and folders draw from these alone:
``python -m tests.mutate --seed 4242 vitviz/attention vitviz/attribution``.

Tests. The map names those that ran the line; if none did, those that ran any line of its statement. A place that runs
when its module is imported has the tests that ran a function of the module; if there are none, a function of the
folder. So has a line that no test is known to run, as its process may have been killed before it told. What a fixture
that tests share has run counts for each of them. Of these tests the cheapest of each file are run, and the cheapest of
all until there are `MAX_TESTS`. The cost of a test includes its fixtures.

Order. Tests are sorted by powers of four of the cost, then by file, so that the fixtures of a file are made only a few
times. The first failure ends the run. It counts only if the test also fails alone, and passes alone without the change;
else the run goes on with the next test.

Verdict. A change is noticed if a test fails, if the tests cannot be imported, or if a test hangs, which is to take
`HANG_FACTOR` times as long as usual and `HANG_SECONDS` more. If `MAX_SECONDS` are over and every test until then has
passed, the change was not noticed. Each verdict is a line of JSON in the state file; a rerun skips these places. To ask
more tests about those that were not noticed, delete their lines and give more ``--tests`` and ``--seconds``.

The map and the state belong to one version of the code and its tests: for another, make the map again and name another
state file.
"""

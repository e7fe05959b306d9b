"""The HTTP server in front of Gradio and what it may use.

:mod:`vitviz.ui.server.request_filter` is the outermost layer of the app. It serves only the routes of
:mod:`vitviz.ui.server.routes`, for the hosts and origins of :mod:`vitviz.ui.server.hosts`, with bodies that
:mod:`vitviz.ui.server.bodies` has bounded and :mod:`vitviz.ui.server.program_calls` has checked. It answers everything
else in one sentence. ``docs/hosting.md`` lists what this promises.
"""

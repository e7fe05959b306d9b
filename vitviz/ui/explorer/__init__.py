"""The page in the browser, which computes and draws as much as it can without the server."""

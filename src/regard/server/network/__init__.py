"""Below the application: connections and which are closed first, HTTP, and JSON bodies."""

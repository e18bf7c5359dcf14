"""A server forked from a process that has imported everything: a restart without imports."""

from server.processes import ServerProcess, free_port


class ForkedServer(ServerProcess):
    """Starts within a fraction of a second, and has the compiler when it does."""

    def __init__(self, nursery, *given, busy_seconds=None, **named):
        super().__init__(*given, **named)
        self._nursery, self._busy_seconds = nursery, busy_seconds

    def begin(self):
        """Start, and do not wait."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        arguments = ["serve", "--config", str(self._config), "--data-dir", str(self.data_dir),
                     "--port", str(port)]  # fmt: skip
        if self.database is not None:
            arguments += ["--database", self.database]
        self.process = self._nursery.bear(arguments, self.log, busy_seconds=self._busy_seconds)

"""The ground both towers stand on: pure values and laws; knows no process, socket, clock or file."""

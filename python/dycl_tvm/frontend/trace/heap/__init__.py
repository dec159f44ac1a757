# Licensed under the Apache License, Version 2.0; see LICENSE.
"""What a program can change, and the log to undo it."""

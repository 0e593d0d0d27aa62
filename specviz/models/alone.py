"""One load at a time.

While transformers builds a model to be filled from files, the whole process is altered, and afterwards put back as it
was found: torch's default dtype is the model's, weights are not tied. Two threads that do so at once fail, or put back
what the other had set. So whatever loads weights holds this lock meanwhile. It does not keep others from seeing the
altered process: `skeleton` and whatever decodes must not depend on torch's default dtype.
"""

import threading

loading_alone = threading.RLock()

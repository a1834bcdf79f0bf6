"""Files in each trial's directory that other tools read: result.json, progress.csv, params.json,
error.txt and TensorBoard's events.

They follow from the experiment's record. After a restart, and when a trial goes back to a checkpoint,
they are written again up to where it goes on, so that no iteration is in them twice and none is missing.

Of experiments in a bucket or on HDFS, where nothing can be appended to, they are stored whole: params.json
when a trial starts, error.txt when it failed, the others when it ends and when the experiment does.
"""

from __future__ import annotations

from ._log_book import LogBook as LogBook
from ._policy_log import PolicyLog as PolicyLog
from ._result_files import (
    CSVLoggerCallback,
    JsonLoggerCallback,
    LoggerCallback,
    TBXLoggerCallback,
    TensorBoardLoggerCallback,
)

__all__ = [
    "CSVLoggerCallback",
    "JsonLoggerCallback",
    "LoggerCallback",
    "TBXLoggerCallback",
    "TensorBoardLoggerCallback",
]

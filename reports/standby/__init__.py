"""Spark, started while runs are still played.

``process.py`` starts Spark and passes it the runs. ``rehearsal.py`` plans and runs the queries before that, and
``expected.py`` has the facts about a run that are known before its end. ``class_archive.py`` makes Java's start
shorter.
"""

"""Spark, started while runs are still played.

``process.py`` starts it and gives it the runs. ``rehearsal.py`` plans and tries its queries before it has them, and
``expected.py`` says what can be known of a run before it ends. ``class_archive.py`` makes Java's start shorter.
"""

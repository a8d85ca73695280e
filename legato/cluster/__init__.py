"""Legato on several machines, as a Ray Serve application. Needs the extra `cluster`.

Ray places, restarts, updates and scales the replicas. Each replica is one process with one engine per model, and serves
the same ASGI application as `legato serve`.
"""

"""Requests and responses of any API: each response in time, draft versions, forged requests."""

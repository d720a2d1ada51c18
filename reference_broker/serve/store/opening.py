"""Opens the object store that the settings name. It is done in the node's own process, since obstore's threads do not
survive a fork."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from obstore.exceptions import BaseError
from obstore.store import S3Store

from reference_broker.serve.process import StartError
from reference_broker.serve.store.objects import Bucket, Folder, Objects

if TYPE_CHECKING:
    from reference_broker.configuration.broker_config import BrokerConfig

URL: Final = "crucible.remote.store.url"
RETRIES: Final = 2
CONNECT_LIMIT_S: Final = 5


def opened(config: "BrokerConfig", data: Path) -> Objects:
    """Returns the store for a node with this data directory. Raises StartError.

    Credentials for S3 come from the environment (AWS_ACCESS_KEY_ID and the like), so that no request shows them.
    """
    url = config.crucible_remote_store_url
    if not url and config.controller_quorum_voters:
        raise StartError(f"The nodes of a cluster share one object store: give each the same {URL}.")
    try:
        if url.startswith("s3://"):
            return Objects(Bucket(_bucket(config, RETRIES), _bucket(config, 0)), data)
        return Objects(Folder(Path(url.removeprefix("file://") or f"{data.absolute()}-remote").absolute()), data)
    except (OSError, ValueError, BaseError) as failure:
        reason = (str(failure).splitlines() or [type(failure).__name__])[0]
        where = url or "beside the data directory"
        raise StartError(f"The object store {where} cannot be used: {reason}.") from failure


def _bucket(config: "BrokerConfig", retries: int) -> S3Store:
    limit = timedelta(milliseconds=config.crucible_remote_store_timeout_ms)
    endpoint = config.crucible_remote_store_endpoint
    return S3Store.from_url(
        config.crucible_remote_store_url,
        config={"endpoint": endpoint} if endpoint else {},
        client_options={
            "timeout": limit,
            "connect_timeout": min(limit, timedelta(seconds=CONNECT_LIMIT_S)),
            "allow_http": endpoint.startswith("http://"),
        },
        retry_config={"max_retries": retries, "retry_timeout": limit},
    )

"""The systems measured, each as its own quick start sets it up; some a second time, with more settings."""

from tests.tools.peers.place import Peer
from tests.tools.peers.systems import celery, django_ox, django_tasks_db, ours, pgqueuer, procrastinate

PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        ours.PEER,
        procrastinate.PEER,
        procrastinate.RETRYING,
        pgqueuer.PEER,
        django_tasks_db.PEER,
        django_ox.PEER,
        celery.PEER,
        celery.ACKS_LATE,
        celery.CAREFUL,
    )
}

"""Remote workers: machines that claim and complete jobs over HTTP, without a connection to the database.

Add `django_pgqueue.contrib.remote` to `INSTALLED_APPS`, include its `urls`, and create a token with `manage.py pgqueue
remote-token create`. The modules, from a request to the database:

* `urls`, `views` and `endpoint`: the HTTP interface. `endpoint` checks the token, the rate and the size of a request.
* `request_fields` and `problems`: check the JSON of a request, and answer with an error.
* `waiting_claims` and `claim_group`: one thread for each database claims jobs for all machines that wait.
* `transitions`: extend leases, and write how executions ended, by the transitions that local workers use.
* `handles`: the signed text by which a machine names its worker or its execution.
* `machine_tokens` and `scope`: who may claim what.
* `engine`: the few threads and connections of this process.
* `client` and `remote_worker`: the Python worker, which runs on the other machine.

No other package imports this one. A machine can do only what its token allows: every request reads the token's row, and
a handle is valid only with the token that it was made for.
"""

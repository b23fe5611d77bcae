"""The view that the payment service calls."""

import json

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from .tasks import record_payment
from .webhooks import is_genuine


@csrf_exempt
@require_POST
def payment(request: HttpRequest) -> HttpResponse:
    """Check the signature and enqueue the work. The service sends the event again unless the answer is 2xx."""
    if not is_genuine(request.headers, request.body, settings.SHOP_PAYMENT_SECRET):
        return HttpResponse("the signature is wrong, or the request is too old", status=400)
    event = json.loads(request.body)
    job = record_payment.enqueue(event["id"], event["order"])
    return HttpResponse("known" if job.is_duplicate else "accepted", status=202)

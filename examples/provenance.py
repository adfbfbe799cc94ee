"""Watch an answer being written: every token with who wrote it and why, every request with what it cost.

An ``accepted`` token was drafted here and checked by the cloud: KL(cloud || local) is known at its place, as an
interval in nats. Where it exceeds the threshold, the cloud corrects the token (``recovered``) and writes on for a
while (``written``). A shown token is never taken back.

    python examples/provenance.py
"""

from __future__ import annotations

import hybrid
from hybrid.run import Degraded, Finished, RequestSent, RequestSettled, Token, TokenEmitted
from hybrid.spend import as_usd

QUESTION = "Integrate 30x^5 + 12x^3 so that F(1) = 10."


def main() -> None:
    print(QUESTION)
    with hybrid.open(policy="kl", threshold=0.5, price="1/0.1/4", ledger="none") as client:
        for event in client.stream(QUESTION):
            match event:
                case RequestSent():
                    what = f"{event.kind} {event.num_tokens} tokens from {event.position}"
                    print(f"  > {what}, at most {as_usd(event.reserved_nanousd)}")
                case RequestSettled():
                    print(f"  < {event.kind}: {as_usd(event.nanousd)} after {event.ms:.0f} ms")
                case TokenEmitted(position, token):
                    print(f"{position:3} {token.text!r:12} {token.source:6} {token.how:10} {reason(token)}")
                case Degraded(why):
                    print(f"  ! the local model goes on alone: {why}")
                case Finished(answer):
                    print(answer.text)
                    usage = answer.usage
                    print(f"{usage.cloud_tokens} of {len(answer.tokens)} tokens by the cloud", end=", ")
                    print(f"{usage.cloud_requests} requests, {answer.bill}")


def reason(token: Token) -> str:
    measured = f"KL {token.kl.lower:.5f} to {token.kl.upper:.5f}" if token.kl else "KL not measured"
    return f"{measured}; the cloud took the pen: {token.why}" if token.why else measured


if __name__ == "__main__":
    main()

"""Bring your own pair: any GGUF file here, any endpoint that speaks vLLM's completions API there.

    vllm serve your/model --port 8123    # or: python -m server_stub --model hybrid/models/large.gguf --port 8123
    python examples/own_models.py --local your.gguf --cloud http://127.0.0.1:8123 --price 1/0.1/4

Without arguments the bundled pair answers, its server started for the run; an endpoint wants a local model of its
vocabulary. An endpoint that fails costs its help, not the answer (``degraded`` says why); what can never work is raised
before any text.
"""

from __future__ import annotations

import argparse
import sys

import hybrid
from hybrid.errors import CloudRefusal, EngineError, UsageError, VocabularyMismatch

QUESTION = "Set a timer for 12 minutes and 30 seconds and call it tea."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--local", metavar="GGUF", help="the local model's file")
    parser.add_argument("--cloud", metavar="URL", help="the endpoint's address, with or without /v1")
    parser.add_argument("--cloud-model", metavar="M", help="which of the endpoint's models")
    parser.add_argument("--api-key-env", metavar="VAR", help="the environment variable that holds its key")
    parser.add_argument("--price", metavar="P/C/O", help="USD per million prompt/cached/completion tokens, or free")
    args = parser.parse_args()
    try:
        with hybrid.open(  # a setting that is None was not given
            local=args.local,
            cloud=args.cloud,
            cloud_model=args.cloud_model,
            api_key_env=args.api_key_env,
            price=args.price,
        ) as client:
            answer = client.generate(QUESTION)
    except UsageError as error:
        sys.exit(f"A setting cannot be used: {error}.")
    except EngineError as error:
        sys.exit(f"The local model cannot be used: {error}.")
    except VocabularyMismatch as error:
        sys.exit(f"These two models cannot work together: {error}.")
    except CloudRefusal as error:
        sys.exit(f"The endpoint refuses: {error}.")
    print(f"{QUESTION}\n{answer.text}")
    print(f"{answer.usage.cloud_tokens} of {len(answer.tokens)} tokens by the cloud; {answer.bill}")
    if answer.degraded:
        print(f"degraded, the local model went on alone: {answer.degraded}")


if __name__ == "__main__":
    main()

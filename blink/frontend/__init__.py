"""The HTTP half of the appliance: the OpenAI API over a ring client. Never imports backend or engine."""

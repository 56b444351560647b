"""Chat templates in the styles that models use, our own and as short as shows the trait."""

CHATML = """\
{% for m in messages %}<turn>{{ m['role'] }}
{{ m['content'] }}<end>
{% endfor %}
{% if add_generation_prompt %}<turn>assistant
{% endif %}"""

# Gemma: no system role, turns must alternate, contents trimmed.
NO_SYSTEM = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not \
supported') }}{% endif %}
{% for m in messages %}
{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
<turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}
{{ m['content'] | trim }}<end>
{% endfor %}
{% if add_generation_prompt %}<turn>model
{% endif %}"""

# Mistral: the system text becomes the head of the first user turn.
FOLDING = """\
{% set system = '' %}
{% if messages[0]['role'] == 'system' %}
{% set system = messages[0]['content'] + '\\n\\n' %}
{% set messages = messages[1:] %}
{% endif %}
{{ bos_token }}{% for m in messages %}
{% if m['role'] == 'user' %}[INST] {{ system if loop.first else '' }}{{ m['content'] }} [/INST]
{%- else %} {{ m['content'] }}{{ eos_token }}{% endif %}
{% endfor %}"""

# Llama-3.1: today's date in the system turn.
DATED = """\
{{ bos_token }}{%- if strftime_now is defined %}
{%- set today = strftime_now('%d %b %Y') %}
{%- else %}
{%- set today = '26 Jul 2024' %}
{%- endif %}<turn>system
Today Date: {{ today }}

{% for m in messages %}<turn>{{ m.role }}
{{ m.content | trim }}<end>{% endfor %}<turn>assistant
"""

# Llama-3: contents trimmed.
TRIMMING = """\
{{ bos_token }}{% for m in messages %}<turn>{{ m.role }}

{{ m.content | trim }}<end>{% endfor %}<turn>assistant

"""

# Qwen3: earlier answers lose their reasoning, the last one keeps it.
EDITING = """\
{% set ns = namespace(last=messages | length - 1) %}
{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{% endfor %}
{% for m in messages %}<turn>{{ m.role }}
{% if m.role == 'assistant' and '</why>' in m.content and loop.index0 < ns.last %}
{{ m.content.split('</why>')[-1].lstrip('\\n') }}
{%- else %}
{{ m.content }}
{%- endif %}<end>
{% endfor %}
<turn>assistant
"""

# Phi-3: meant for control tokens that take the white space after them.
NEWLINES = """\
{% for m in messages %}{{ '<turn>' + m['role'] + '\\n' + m['content'] + '<end>\\n' }}{% endfor %}
{{ '<think>\\n' }}"""

# Looks into the last content.
BRANCHING = """\
{% for m in messages %}<turn>{{ m.role }}
{{ m.content }}{% if m.content.startswith('/fast') %} Be brief.{% endif %}<end>
{% endfor %}<turn>assistant
"""

# Everything else a template may use: loop control, macros, tojson, generation blocks.
EVERYTHING = """\
{%- macro turn(m) -%}<turn>{{ m.role | upper }} {{ m.content | tojson }}{%- endmacro -%}
{% set ns = namespace(n=0) %}
{%- for m in messages %}
    {%- if m.role == 'system' %}{% continue %}{% endif %}
    {%- if loop.index > 4 %}{% break %}{% endif %}
    {%- set ns.n = ns.n + 1 %}
    {% generation %}{{ turn(m) }}{% set inner = 1 %}{% endgeneration %}
{{ '%02d' | format(ns.n) }} {{ inner is defined }} {{ tools is none }} {{ dict(a=ns.n) }}
    {{- {'b': [1, 'é<']} | tojson(indent=2) }}
{% endfor %}
{{ bos_token is defined }} {{ missing }}{{ strftime_now('%Y') | length }}
{{ "yes" if add_generation_prompt else "no" }}"""

ALL = {name: text for name, text in globals().items() if name.isupper() and isinstance(text, str)}

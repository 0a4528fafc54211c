"""The endpoints under /v1 that do what runs do: one for each verb.

    GET  /v1/models                              -> answers.Models
    POST /v1/translate    requests.Translate     -> answers.Translations   stream: true -> events, see below
    POST /v1/generate     requests.Generate      -> answers.Generated      stream: true -> events
    POST /v1/fill         requests.Fill          -> answers.Fills
    POST /v1/classify     requests.Classify      -> answers.Classes
    POST /v1/tag          requests.Tag           -> answers.Tags
    POST /v1/answer       requests.Answer        -> answers.Answers
    POST /v1/embed        requests.Embed         -> answers.Vectors
    POST /v1/caption      requests.Caption       -> answers.Captions       stream: true -> events
    POST /v1/match        requests.Match         -> answers.Matches
    POST /v1/draw         requests.Draw          -> answers.Drawings
    POST /v1/attention    requests.Attention     -> answers.Attention, or with form = attn, svg or png the file itself
    POST /v1/explain      requests.Explain       -> answers.Explained

Everything that is no success is answers.Wrong: {"error": {"message", "type", "param", "code"}}.

A stream is text/event-stream of lines `data: JSON`: one answers.Piece for each token, in order; then answers.Event, whose `done` is
what the endpoint answers without stream (with `looks` in it where they were asked for); then `data: [DONE]`. What goes wrong after
the first event is an event {"error": {...}}, and then [DONE].
"""

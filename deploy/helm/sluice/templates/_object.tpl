{{/*
Render an object of this chart: render the template, merge `merge` over the object, and apply the
operations of `patch` (JSON Patch, RFC 6902).

Dict "root" (the context of the template), "template" (its name), "values" (the map with `merge` and
`patch`) and "key" (the path of that map in the values, for errors).
*/}}
{{- define "sluice.object" -}}
{{- $object := include .template .root | fromYaml }}
{{- if hasKey $object "Error" }}
{{- fail (printf "%s: %s" .template $object.Error) }}
{{- end }}
{{- with .values.merge }}
{{- $object = mustMergeOverwrite $object (deepCopy .) }}
{{- end }}
{{- range $number, $operation := .values.patch }}
{{- $where := printf "%s.patch[%d]" $.key $number }}
{{- $object = (include "sluice.patch" (dict "document" $object "operation" $operation "where" $where) | fromJson).node }}
{{- end }}
{{- toYaml $object }}
{{- end }}

{{/* Apply one operation. Returns {"node": …} as JSON. Dict "document", "operation", "where". */}}
{{- define "sluice.patch" -}}
{{- $operation := .operation }}
{{- $op := $operation.op | default "" }}
{{- if not (has $op (list "add" "remove" "replace" "copy" "move" "test")) }}
{{- fail (printf "%s: op is %q: write add, remove, replace, copy, move or test" .where $op) }}
{{- end }}
{{- if and (has $op (list "add" "replace" "test")) (not (hasKey $operation "value")) }}
{{- fail (printf "%s: %s needs a value" .where $op) }}
{{- end }}
{{- $tokens := include "sluice.pointer" (dict "text" $operation.path "where" .where "key" "path") | fromJsonArray }}
{{- $document := .document }}
{{- $value := get $operation "value" }}
{{- if has $op (list "copy" "move") }}
{{- $from := include "sluice.pointer" (dict "text" $operation.from "where" .where "key" "from") | fromJsonArray }}
{{- $value = (include "sluice.patch.read" (dict "node" $document "tokens" $from "where" .where) | fromJson).node }}
{{- if eq $op "move" }}
{{- $document = (include "sluice.patch.change" (dict "node" $document "tokens" $from "op" "remove" "where" .where) | fromJson).node }}
{{- end }}
{{- $op = "add" }}
{{- end }}
{{- if eq $op "test" }}
{{- $found := (include "sluice.patch.read" (dict "node" $document "tokens" $tokens "where" .where) | fromJson).node }}
{{- if ne (toJson $found) (toJson $value) }}
{{- fail (printf "%s: the test failed: %s is %s, not %s" .where $operation.path (toJson $found) (toJson $value)) }}
{{- end }}
{{- toJson (dict "node" $document) }}
{{- else }}
{{- include "sluice.patch.change" (dict "node" $document "tokens" $tokens "op" $op "value" $value "where" .where) }}
{{- end }}
{{- end }}

{{/* The parts of a JSON pointer as a JSON list. */}}
{{- define "sluice.pointer" -}}
{{- $text := .text | default "" | toString }}
{{- if not (hasPrefix "/" $text) }}
{{- fail (printf "%s: %s is %q: write a JSON pointer such as /metadata/labels/team" .where .key $text) }}
{{- end }}
{{- $tokens := list }}
{{- range (splitList "/" $text | rest) }}
{{- $tokens = append $tokens (. | replace "~1" "/" | replace "~0" "~") }}
{{- end }}
{{- toJson $tokens }}
{{- end }}

{{/* The index of a token in a list, or its length for "-". Dict "token", "length", "most", "where". */}}
{{- define "sluice.patch.index" -}}
{{- if and (eq .token "-") (eq (int .most) (int .length)) }}
{{- .length }}
{{- else if not (regexMatch "^(0|[1-9][0-9]{0,5})$" .token) }}
{{- fail (printf "%s: %q is not an index of a list" .where .token) }}
{{- else if gt (int .token) (int .most) }}
{{- fail (printf "%s: the index %s is outside a list of %d" .where .token (int .length)) }}
{{- else }}
{{- .token }}
{{- end }}
{{- end }}

{{- define "sluice.patch.read" -}}
{{- if empty .tokens }}
{{- toJson (dict "node" .node) }}
{{- else }}
{{- $token := first .tokens }}
{{- $child := "" }}
{{- if kindIs "map" .node }}
{{- if not (hasKey .node $token) }}{{ fail (printf "%s: nothing is at %q" .where $token) }}{{ end }}
{{- $child = get .node $token }}
{{- else if kindIs "slice" .node }}
{{- $length := len .node }}
{{- $child = index .node (include "sluice.patch.index" (dict "token" $token "length" $length "most" (sub $length 1) "where" .where) | int) }}
{{- else }}
{{- fail (printf "%s: %q is inside neither a map nor a list" .where $token) }}
{{- end }}
{{- include "sluice.patch.read" (dict "node" $child "tokens" (rest .tokens) "where" .where) }}
{{- end }}
{{- end }}

{{- define "sluice.patch.change" -}}
{{- $op := .op }}
{{- $node := .node }}
{{- if empty .tokens }}
{{- if eq $op "remove" }}{{ fail (printf "%s: a whole object cannot be removed" .where) }}{{ end }}
{{- $node = .value }}
{{- else }}
{{- $token := first .tokens }}
{{- $isLast := eq (len .tokens) 1 }}
{{- if kindIs "map" $node }}
{{- if and (not (and $isLast (eq $op "add"))) (not (hasKey $node $token)) }}
{{- fail (printf "%s: nothing is at %q" .where $token) }}
{{- end }}
{{- if not $isLast }}
{{- $_ := set $node $token (include "sluice.patch.change" (dict "node" (get $node $token) "tokens" (rest .tokens) "op" $op "value" .value "where" .where) | fromJson).node }}
{{- else if eq $op "remove" }}
{{- $_ := unset $node $token }}
{{- else }}
{{- $_ := set $node $token .value }}
{{- end }}
{{- else if kindIs "slice" $node }}
{{- $length := len $node }}
{{- $most := ternary $length (sub $length 1) (and $isLast (eq $op "add")) }}
{{- $at := include "sluice.patch.index" (dict "token" $token "length" $length "most" $most "where" .where) | int }}
{{- $made := list }}
{{- range $number, $each := $node }}
{{- if ne $number $at }}
{{- $made = append $made $each }}
{{- else if not $isLast }}
{{- $made = append $made (include "sluice.patch.change" (dict "node" $each "tokens" (rest $.tokens) "op" $op "value" $.value "where" $.where) | fromJson).node }}
{{- else if eq $op "add" }}
{{- $made = append (append $made $.value) $each }}
{{- else if eq $op "replace" }}
{{- $made = append $made $.value }}
{{- end }}
{{- end }}
{{- if and $isLast (eq $op "add") (eq $at $length) }}
{{- $made = append $made .value }}
{{- end }}
{{- $node = $made }}
{{- else }}
{{- fail (printf "%s: %q is inside neither a map nor a list" .where $token) }}
{{- end }}
{{- end }}
{{- toJson (dict "node" $node) }}
{{- end }}

{{/* Whether pods move their map outputs before they stop: always, never or whenCordoned. */}}
{{- define "sluice.migrate" -}}
{{- default (ternary "never" "always" (eq .Values.mode "DaemonSet")) .Values.drain.migrate }}
{{- end }}

{{/* Bytes that a pod may store: its volumes and its memory tier. */}}
{{- define "sluice.storedBytes" -}}
{{- $memory := include "sluice.memory" . | fromJson }}
{{- $size := include "sluice.bytes" (dict "value" .Values.storage.size "name" "storage.size") | int64 }}
{{- if eq .Values.mode "StatefulSet" }}
{{- $size = mul $size (int .Values.storage.volumes) }}
{{- end }}
{{- add $size (mul (int64 $memory.tier) 1048576) }}
{{- end }}

{{/* Seconds in which a pod moves all that it may store. */}}
{{- define "sluice.migrateSeconds" -}}
{{- $rate := include "sluice.bytes" (dict "value" .Values.drain.bytesPerSecond "name" "drain.bytesPerSecond") | int64 }}
{{- if lt $rate 1 }}{{ fail "drain.bytesPerSecond = 0: write a rate such as 100Mi" }}{{ end }}
{{- $stored := include "sluice.storedBytes" . | int64 }}
{{- max (int .Values.drain.minimumSeconds) (div (add $stored (sub $rate 1)) $rate) }}
{{- end }}

{{/*
The grace period: the wait of `sluice drain`, drain_timeout_seconds after SIGTERM, the 15 seconds in
which a TaskManager closes, and 15 seconds to spare.
*/}}
{{- define "sluice.gracePeriod" -}}
{{- if .Values.drain.terminationGracePeriodSeconds }}
{{- int .Values.drain.terminationGracePeriodSeconds }}
{{- else }}
{{- $migrate := include "sluice.migrate" . }}
{{- $wait := ternary 0 (int .Values.drain.waitSeconds) (eq $migrate "always") }}
{{- if ne $migrate "never" }}
{{- $wait = max $wait (include "sluice.migrateSeconds" . | int) }}
{{- end }}
{{- add $wait (int .Values.drain.timeoutSeconds) 30 }}
{{- end }}
{{- end }}

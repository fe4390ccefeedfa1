{{/* Whether pods move their map outputs before they stop. */}}
{{- define "sluice.migrates" -}}
{{- $default := ternary "never" "always" (eq .Values.mode "DaemonSet") }}
{{- if eq (default $default .Values.drain.migrate) "always" }}true{{ end }}
{{- end }}

{{/* Seconds that `sluice drain` waits before a pod stops. */}}
{{- define "sluice.drainSeconds" -}}
{{- if include "sluice.migrates" . }}
{{- $memory := include "sluice.memory" . | fromJson }}
{{- $size := include "sluice.bytes" (dict "value" .Values.storage.size "name" "storage.size") | int64 }}
{{- if eq .Values.mode "StatefulSet" }}
{{- $size = mul $size (int .Values.storage.volumes) }}
{{- end }}
{{- $size = add $size (mul (int64 $memory.tier) 1048576) }}
{{- $rate := include "sluice.bytes" (dict "value" .Values.drain.bytesPerSecond "name" "drain.bytesPerSecond") | int64 }}
{{- if lt $rate 1 }}{{ fail "drain.bytesPerSecond = 0: write a rate such as 100Mi" }}{{ end }}
{{- max (int .Values.drain.minimumSeconds) (div (add $size (sub $rate 1)) $rate) }}
{{- else }}
{{- int .Values.drain.waitSeconds }}
{{- end }}
{{- end }}

{{/*
The grace period: the wait of `sluice drain`, drain_timeout_seconds after SIGTERM, the 15 seconds in
which a TaskManager closes, and 15 seconds to spare.
*/}}
{{- define "sluice.gracePeriod" -}}
{{- if .Values.drain.terminationGracePeriodSeconds }}
{{- int .Values.drain.terminationGracePeriodSeconds }}
{{- else }}
{{- add (include "sluice.drainSeconds" . | int) (int .Values.drain.timeoutSeconds) 30 }}
{{- end }}
{{- end }}

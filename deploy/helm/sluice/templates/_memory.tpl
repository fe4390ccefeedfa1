{{/* Whether map outputs are kept in memory first. */}}
{{- define "sluice.memoryTier" -}}
{{- $default := ternary "true" "false" (eq .Values.mode "DaemonSet") }}
{{- if eq (default $default (toString .Values.memoryTier)) "true" }}true{{ end }}
{{- end }}

{{/*
The parts of `memory`, in MiB, as JSON. README.md, "Memory", has the same arithmetic, and
tests/charts compares both with docs/operate/sizing.md.

  memory = process + control + segments + areas + cache + shm
*/}}
{{- define "sluice.memory" -}}
{{- $processes := int .Values.processes }}
{{- $total := div (include "sluice.bytes" (dict "value" .Values.memory "name" "memory")) 1048576 | int }}
{{- $least := mul 512 $processes | int }}
{{- if lt $total $least }}
{{- fail (printf "memory = %v: %d data processes need at least %dMi: raise memory" .Values.memory $processes $least) }}
{{- end }}
{{- $process := mul 160 $processes }}
{{- $control := min (max (div $total 32) 16) 64 }}
{{- $segments := min (max (div $total 16) 16) (mul 1024 $processes) }}
{{- $areas := ternary (min (max (div $total 16) 16) 1024) 0 (eq .Values.mode "DaemonSet") }}
{{- $cache := div $total 8 }}
{{- $upload := 0 }}
{{- if dig "storage" "remote" "" .Values.config }}
{{- $upload = 64 }}
{{- end }}
{{- $shm := sub $total (add $process $control $segments $areas $cache $upload) }}
{{- /* /dev/shm has the tier, a sixteenth of it that stays free, and 16 MiB for its journal. */}}
{{- $tier := div (mul (sub $shm 16) 16) 17 }}
{{- if not (include "sluice.memoryTier" .) }}
{{- $cache = add $cache $shm }}
{{- $shm = 0 }}
{{- $tier = 0 }}
{{- end }}
{{- $segmentBytes := 32768 }}
{{- dict "total" $total "process" $process "control" $control "areas" $areas "cache" $cache "shm" $shm "tier" $tier "segmentsMiB" $segments "segments" (div (mul $segments 1048576) (mul $segmentBytes $processes)) | toJson }}
{{- end }}

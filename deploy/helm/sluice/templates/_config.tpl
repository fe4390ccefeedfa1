{{/* Settings of a TaskManager as JSON: those of the chart, and `config` merged over them. */}}
{{- define "sluice.config" -}}
{{- $memory := include "sluice.memory" . | fromJson }}
{{- $daemonSet := eq .Values.mode "DaemonSet" }}
{{- $transport := dict "data_port" .Values.ports.data }}
{{- if $daemonSet }}
{{- $_ := set $transport "socket_path" "/run/sluice/taskmanager.sock" }}
{{- end }}
{{- $auth := dict }}
{{- if .Values.auth.allowAnonymous }}
{{- $_ := set $auth "allow_anonymous" true }}
{{- else }}
{{- $_ := set $auth "cluster_secret_files" (list (printf "/run/sluice-secret/%s" .Values.auth.key)) }}
{{- end }}
{{- $directories := list }}
{{- range (include "sluice.dataVolumes" . | fromJsonArray) }}
{{- $directories = append $directories .path }}
{{- end }}
{{- $storage := dict
  "data_directories" $directories
  "memory_directory" (ternary "/dev/shm/sluice" "none" (eq (include "sluice.memoryTier" .) "true"))
  "memory_tier_bytes" (printf "%d MiB" (int $memory.tier))
  "region_areas_bytes" (printf "%d MiB" (int $memory.areas)) }}
{{- if $daemonSet }}
{{- $_ := set $storage "region_areas_directory" "/run/sluice/areas" }}
{{- else }}
{{- /* The default of 1 GiB would be all of a small volume. */}}
{{- $size := div (include "sluice.bytes" (dict "value" .Values.storage.size "name" "storage.size") | int64) 1048576 }}
{{- $_ := set $storage "min_free_bytes" (printf "%d MiB" (min 1024 (div $size 16))) }}
{{- end }}
{{- $own := dict
  "processes" .Values.processes
  "drain_timeout_seconds" .Values.drain.timeoutSeconds
  "transport" (mustMerge $transport (dict "max_control_memory_bytes" (printf "%d MiB" (int $memory.control))) (include "sluice.tls.config" . | fromJson))
  "auth" $auth
  "memory" (dict "network_segments" $memory.segments)
  "storage" $storage
  "cluster" (dict "taskmanagers" (list (printf "dns:%s:%d" (include "sluice.serviceHost" .) (int .Values.ports.data))))
  "http" (dict "http_port" .Values.ports.http "http_socket_path" "/tmp/sluice/http.sock") }}
{{- mustMergeOverwrite $own (deepCopy .Values.config) | toJson }}
{{- end }}

{{/* Volumes of the disk tier with their mount paths, as a JSON list. */}}
{{- define "sluice.dataVolumes" -}}
{{- $volumes := list }}
{{- if eq .Values.mode "StatefulSet" }}
{{- range $number := until (int .Values.storage.volumes) }}
{{- $volumes = append $volumes (dict "name" (printf "data-%d" $number) "path" (printf "/var/lib/sluice/%d" $number)) }}
{{- end }}
{{- else if .Values.storage.daemonSetVolumes }}
{{- range $number, $volume := .Values.storage.daemonSetVolumes }}
{{- $volumes = append $volumes (dict "name" (printf "data-%d" $number) "path" (printf "/var/lib/sluice/%d" $number) "volume" $volume) }}
{{- end }}
{{- else }}
{{- range $number, $path := .Values.storage.hostPaths }}
{{- $volumes = append $volumes (dict "name" (printf "data-%d" $number) "path" (printf "/var/lib/sluice/%d" $number) "volume" (dict "hostPath" (dict "path" $path "type" "DirectoryOrCreate"))) }}
{{- end }}
{{- end }}
{{- toJson $volumes }}
{{- end }}

{{/* A value as TOML. */}}
{{- define "sluice.toml.value" -}}
{{- if kindIs "string" . }}{{ toRawJson . }}
{{- else if kindIs "bool" . }}{{ . }}
{{- else if kindIs "slice" . }}[
{{- range $number, $each := . }}{{ if $number }}, {{ end }}{{ include "sluice.toml.value" $each }}{{ end -}}
]
{{- else if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}
{{- else if or (kindIs "int" .) (kindIs "int64" .) (kindIs "float64" .) }}{{ . }}
{{- else }}{{ fail (printf "config: %v is neither a text, a number, true, false nor a list" .) }}
{{- end }}
{{- end }}

{{/* Settings as TOML. Dict of keys at the top level and of tables. */}}
{{- define "sluice.toml" -}}
{{- range $key, $value := . }}
{{- if not (or (kindIs "map" $value) (kindIs "invalid" $value)) }}
{{ $key }} = {{ include "sluice.toml.value" $value }}
{{- end }}
{{- end }}
{{- range $table, $keys := . }}
{{- if kindIs "map" $keys }}

[{{ $table }}]
{{- range $key, $value := $keys }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }} = {{ include "sluice.toml.value" $value }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

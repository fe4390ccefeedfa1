{{/* Names, labels and small functions. */}}

{{- define "sluice.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "sluice.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- $name := include "sluice.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "sluice.selectorLabels" -}}
app.kubernetes.io/name: {{ include "sluice.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: taskmanager
{{- end }}

{{- define "sluice.labels" -}}
{{ include "sluice.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Metadata of an object: dict "root", "name", and optionally "labels" and "annotations". */}}
{{- define "sluice.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "sluice.labels" .root | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "sluice.isDaemonSet" -}}
{{- if eq .Values.mode "DaemonSet" }}true{{ end }}
{{- end }}

{{- define "sluice.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "sluice.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "sluice.secretName" -}}
{{- default (printf "%s-cluster-secret" (include "sluice.fullname" .)) .Values.auth.existingSecret }}
{{- end }}

{{- define "sluice.image" -}}
{{- $image := .Values.image }}
{{- $name := ternary (printf "%s/%s" $image.registry $image.repository) $image.repository (ne $image.registry "") }}
{{- if $image.digest }}
{{- printf "%s@%s" $name $image.digest }}
{{- else }}
{{- printf "%s:%s" $name (default .Chart.AppVersion $image.tag) }}
{{- end }}
{{- end }}

{{/* The DNS name of the TaskManagers together. */}}
{{- define "sluice.serviceHost" -}}
{{- printf "%s.%s.svc" (include "sluice.fullname" .) .Release.Namespace }}
{{- end }}

{{/* The data ports, one for each data process, as a JSON list. */}}
{{- define "sluice.dataPorts" -}}
{{- $ports := list }}
{{- range $process := until (int .Values.processes) }}
{{- $ports = append $ports (add (int $.Values.ports.data) (mul 2 $process)) }}
{{- end }}
{{- toJson $ports }}
{{- end }}

{{/*
Bytes of a quantity of Kubernetes: "4Gi", "512Mi", "2G", 1073741824. Dict "value" and "name", the
key for the error.
*/}}
{{- define "sluice.bytes" -}}
{{- $text := .value | toString }}
{{- if kindIs "float64" .value }}{{ $text = .value | int64 | toString }}{{ end }}
{{- if not (regexMatch "^[0-9]+([.][0-9]+)?(Ki|Mi|Gi|Ti|Pi|k|M|G|T|P)?$" $text) }}
{{- fail (printf "%s = %s: write a size such as 512Mi or 4Gi" .name $text) }}
{{- end }}
{{- $factors := dict "" 1 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "P" 1000000000000000 }}
{{- $unit := regexFind "[A-Za-z]*$" $text }}
{{- $number := trimSuffix $unit $text }}
{{- mulf (float64 $number) (float64 (get $factors $unit)) | int64 }}
{{- end }}

{{/* Whether an object is made: always, or with auto if the cluster has the kind of the operator. */}}
{{- define "sluice.monitoring.wants" -}}
{{- if eq .when "always" }}true
{{- else if eq .when "auto" }}
{{- if .root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind) }}true{{ end }}
{{- end }}
{{- end }}

{{/* Labels by which objects find the pods of this release. */}}
{{- define "raftlog.selector" -}}
app.kubernetes.io/name: raftlog
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "raftlog.labels" -}}
{{ include "raftlog.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

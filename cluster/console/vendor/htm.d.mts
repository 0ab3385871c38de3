/** Types of htm, for `tsc` (.ci/tsc). */
declare const htm: { bind(h: any): (texts: TemplateStringsArray, ...values: any[]) => any };
export default htm;

/** Types of what the console uses of Preact, for `tsc` (.ci/tsc). */
export function h(type: any, props: any, ...children: any[]): any;
export function render(node: any, parent: Element): void;

export class Component<Props = any, State = any> {
  constructor(props?: Props);
  props: Props;
  state: State;
  setState(change: Partial<State> | ((state: State, props: Props) => Partial<State> | null), then?: () => void): void;
  forceUpdate(then?: () => void): void;
  componentDidMount?(): void;
  componentDidUpdate?(props: Props, state: State): void;
  componentWillUnmount?(): void;
  render(props?: Props, state?: State): any;
}
